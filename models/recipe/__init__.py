"""Trains a small Qwen3-Omni-MoE checkpoint that really speaks, and judges it.

    python -m models.recipe build DIR      # resumes what was stopped
    python -m models.recipe judge DIR      # needs pocketsphinx

Needs the Debian package espeak-ng, and nothing is downloaded. The steps: units (every
word spoken by espeak-ng, its sound and its codes), tokenizer, recordings of questions, then
code2wav, talker, thinker and audio tower, which can be trained side by side with
`--only PART`, then the thinker's lessons in what is spoken, in transcripts and in
functions, and the checkpoint.

Why it is small and quick: the codes of a frame also say which token is spoken, where
in it, and how many text rows were read (`codes`), so the talker has nothing to align;
the look-ups that talker and thinker need are written into their first layers before
training (`circuits`); and the voice is a function of the codes (`vocoder`), so
code2wav needs no adversary.
"""
