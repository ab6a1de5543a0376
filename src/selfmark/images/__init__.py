"""Images in: finding and decoding them, cutting out the object, and the store that training reads.

`sources` turns what the user named into references, `decode` and `video` turn a reference into pixels,
`crop` says which square of the original the network sees and maps coordinates there and back, and
`store` puts it together: all crops of a data set at once, or batch by batch.
"""
