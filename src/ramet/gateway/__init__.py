"""The gateway: speaks the Messages API, runs code execution in Ramet's sandboxes, samples any model upstream.

It uses only what every user of the package has: ``ramet`` and ``ramet.errors``. Only the command line imports it.
A request's way: ``app``, then ``asking`` (what it says), ``turns`` (what happens for it), ``upstream`` (the model),
``containers`` and ``running`` (where and how its code runs), ``files`` (what goes in and comes out).
"""
