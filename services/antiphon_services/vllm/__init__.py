"""Stock vLLM in separate processes, for any stage whose language model it runs.

`tap`, `connector`, `spans`, `row_sender` and `plugin` run in vLLM's processes (`plugin` in the
stage's, too). Everything else runs in the stage. A family adds its model (`plugin.announce`), the
`TextShape` of its checkpoint and the `Media` of its prompts.
"""
