"""Vendors, one folder each. A vendor knows the contract, `agent.vendor_api`, and no other vendor."""
