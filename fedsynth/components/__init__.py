"""What methods are built from."""
