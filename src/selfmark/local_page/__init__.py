"""Serve pages, such as the naming page, to a browser on the same machine.

`page_server` opens a socket that only this machine can reach, and builds the server. `timed_protocol` limits
the time that requests may take to arrive, and the number of connections. `access_guard` authenticates
requests. `page_files` serves the files of a page.
"""
