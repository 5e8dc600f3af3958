"""Runs an unmodified vLLM in separate processes. All stages whose language model runs on vLLM use
this package.

`tap`, `connector`, `spans`, `row_sender` and `plugin` run in vLLM's processes. All other modules,
and also `plugin`, run in the stage. A family adds its model (`plugin.announce`), its checkpoint's
`TextShape` and the `Media` for its prompts.
"""
