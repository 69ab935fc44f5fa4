"""What outlives the process: the checkpoint, who may write it, and when it is written."""
