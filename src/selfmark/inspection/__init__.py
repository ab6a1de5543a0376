"""Inspect images before a training: what the network will see, how long a run will take, and advice.

`image_check` implements `selfmark check`. `input_sheets` draws what the network will see. `step_timing`
measures a few training steps, from which `run_estimate` estimates the duration and memory of a whole run.
`setup_advice` says which options suit the images and this machine.
"""
