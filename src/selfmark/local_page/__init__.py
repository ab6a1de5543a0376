"""Pages that a command serves to a browser on the same machine, such as the naming page.

`page_server` opens a socket for this machine only and builds the server, `timed_protocol` limits the time of
requests and their number, `access_guard` authenticates requests, and `page_files` serves the files of a page.
"""
