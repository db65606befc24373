"""What cells print: collected, streamed, spilled to files, kept for later readers. Start at ``collecting``."""
