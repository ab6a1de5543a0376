"""Watch page: a local web page that shows how far a run is, and its landmarks after each step.

`run_state` turns the events of a run into what the page shows, `watch_app` answers requests, and
`watch_server` serves the page until the user or the run ends. The page itself is in `page/` and needs no
build step. Nothing here imports torch.
"""
