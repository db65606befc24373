"""Functions of the owner that code in a sandbox calls. ``program`` starts bare and must stay quick to import.

Start at ``given_tools``.
"""
