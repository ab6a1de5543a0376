"""Serve the naming page, on which users name, color, hide, pair, connect and correct landmarks.

`edits` defines the changes to a model card as pure functions, and `card_editor` stores them in model.json.
`corrections` stores corrected landmarks, and `correction_choice` chooses the images to correct.
`shown_images` selects the images, `landmark_prediction` predicts their landmarks, and `image_renderer`
renders JPEGs. `app` answers requests, and `server` starts everything. The page itself is in `page/` and needs
no build step. Only `landmark_prediction` imports torch, and it runs in a child process.
"""
