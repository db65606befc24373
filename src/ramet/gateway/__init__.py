"""The gateway: speaks the Messages API, runs code execution in Ramet's sandboxes, samples any model upstream.

It uses only what every user of the package has: ``ramet`` and ``ramet.errors``. Only the command line imports it.
Start reading in ``app`` (a request's way), ``turns`` (what happens for one) and ``containers`` (where its code runs).
"""
