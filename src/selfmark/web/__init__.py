"""The naming page: what people say of landmarks, on a page that this machine serves to itself alone.

`edits` is what can be said, as pure functions on the model card; `ledger` keeps it in model.json; `images`
says which images are shown and `predict` finds the landmarks in them; `pictures` makes them into JPEGs;
`guard` lets nobody in but the user's own browser; `app` answers it, `serve` starts everything. The page
itself, without a build step, lies in `page/`. Only `predict` knows torch, and runs in a process of its own.
"""
