"""Values by name, between the owner and the namespace, without pickles. Start at ``exchange``."""
