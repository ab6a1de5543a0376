"""Serve the watch page: a local web page that shows the progress of a run and its landmarks after each step.

`run_state` turns the events of a run into the content of the page. `watch_app` answers requests.
`watch_server` serves the page until the user stops it or the run ends. The page itself is in `page/` and
needs no build step. Nothing here imports torch.
"""
