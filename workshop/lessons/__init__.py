"""What the notebooks measure and draw: a folder for each lesson."""
