"""What can be asked over HTTP: one module per subject. ``table`` lists every route; start there."""
