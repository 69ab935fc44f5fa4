"""The use of the cards: samples of the vendors, joined with the processes of the node and the ledger."""
