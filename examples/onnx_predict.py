"""Predict the landmarks of a photo without torch or selfmark.

Usage: python onnx_predict.py model.onnx photo.jpg [X Y W H]

X Y W H is the box around the object, in pixels. The script prints one line per landmark: name, x, y, score.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, photo, *box = sys.argv[1:]
session = onnxruntime.InferenceSession(model)
pixels = np.array(ImageOps.exif_transpose(Image.open(photo)).convert("RGB"))
boxes = np.array([box or [0, 0, 0, 0]], np.float32)  # zeros mean the whole image
points, scores = session.run(["points", "scores"], {"images": pixels[None], "boxes": boxes})
names = json.loads(session.get_modelmeta().custom_metadata_map["selfmark.names"])
for name, (x, y), score in zip(names, points[0], scores[0], strict=True):
    print(f"{name} {x:.2f} {y:.2f} {score:.3f}")
