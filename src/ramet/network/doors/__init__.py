"""What listens in a pod, and what programs in there say first: HTTP, SOCKS5, TLS or anything, and questions for names.

Start with ``doors``.
"""
