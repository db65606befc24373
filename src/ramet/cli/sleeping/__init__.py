"""Commands about sandboxes that sleep on disk, one file each."""
