"""The model behind the gateway: how requests are sent to it, and how its answers are read.

Nothing that it sends is trusted. Start with ``sampler.py``.
"""
