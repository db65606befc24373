"""The listeners in a pod, and the first bytes of its programs: HTTP, SOCKS5, TLS or anything else, and DNS queries.

Start with ``listeners``.
"""
