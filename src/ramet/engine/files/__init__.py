"""Files of a sandbox, reached from outside by descriptors below its root. Start at ``tree``."""
