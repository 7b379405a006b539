"""What is told of a run: its timeline, out of its history, as a picture, a page, and values for programs."""
