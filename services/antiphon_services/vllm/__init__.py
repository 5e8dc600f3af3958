"""An unmodified vLLM in separate processes, for all stages whose language model it runs.

`tap`, `connector`, `spans`, `row_sender` and `plugin` run in vLLM's processes. `plugin` also runs
in the stage, as do all other modules. A family adds its model (`plugin.announce`), the `TextShape`
of its checkpoint and the `Media` of its prompts.
"""
