"""A look at images before a training: what the network will see, how long a run will take, and advice.

`image_check` is the command `selfmark check`. `input_sheets` draws what the network will see, `step_timing`
measures a few training steps, `run_estimate` turns them into minutes and memory of a whole run, and
`setup_advice` says which options suit the images and this machine.
"""
