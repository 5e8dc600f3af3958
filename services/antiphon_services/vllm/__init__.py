"""Stock vLLM in processes of its own, for any stage whose language model it runs.

Runs in vLLM's processes: `tap`, `connector`, `spans`, `row_sender`, `plugin` (which the
stage's process has too). Runs in the stage: everything else. What a family adds is its model
(`plugin.announce`), the `TextShape` of its checkpoint and the `Media` of its prompts.
"""
