"""Commands that bring what one sandbox has into another, one file each."""
