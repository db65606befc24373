"""What the namespace holds, described for `diff`: names, short values, digests of content. Start at ``names``."""
