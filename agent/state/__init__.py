"""What outlives the process: the checkpoint, the last config, their formats, and the directory's lock."""
