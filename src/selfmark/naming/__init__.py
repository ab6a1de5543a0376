"""Name landmarks on a page in the browser, served on the local machine only.

`edits` defines the changes to a model card as pure functions, `card_editor` stores them in model.json,
`shown_images` selects images and `landmark_finder` predicts their landmarks, `image_renderer` renders JPEGs,
`access_guard` authenticates requests, `app` answers them and `server` starts everything. The page itself is in
`page/` and needs no build step. Only `landmark_finder` imports torch, in a process of its own.
"""
