"""What GCUShare's schedulers say, and HAMi for GCUShare's device plugin."""
