"""What vendors have in common. Their processes import it, but for `settings`, so it loads nothing else."""
