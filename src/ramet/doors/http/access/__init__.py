"""Who is calling, and what may they have? Keys, authentication, limits per key, operators, the audit log.

Start at ``auth``.
"""
