"""The gateway: speaks the Messages API, runs code execution in Ramet's sandboxes, samples any model upstream.

It uses the public package only (``ramet``, ``ramet.errors``) and ``ramet.web``. Only the command line imports it. The
path of a request: ``application``, then ``requests`` (parses it), ``turns`` (answers it), ``upstream`` (asks the
model), ``containers`` and ``running`` (where and how code runs), ``files`` (what goes in and comes out).
"""
