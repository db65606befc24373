"""The folder of images: what is in it, what it holds in figures, who uses it, and whether it is as it was written."""
