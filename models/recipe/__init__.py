"""Trains and evaluates a small Qwen3-Omni-MoE checkpoint that can actually speak.

    python -m models.recipe build DIR      # resumes an interrupted build
    python -m models.recipe judge DIR      # requires pocketsphinx

The Debian package espeak-ng must be installed. Nothing is downloaded. A build consists of the
following steps:

1. Create the units, which consist of the sound of each word as spoken by espeak-ng and its codes.
2. Create the tokenizer and recordings of questions.
3. Train code2wav, the talker, the thinker and the audio tower. These steps can run in parallel with
   `--only PART`.
4. Train the thinker in lessons on spoken input, transcripts and function calls.
5. Write the checkpoint.

The following design decisions keep the model small and the training short:

- The codes of a frame state which token is being spoken, the position within the token, and the
  number of text rows that have been read (`codes`). The talker therefore does not have to learn an
  alignment.
- The look-ups that the talker and the thinker need are written into their first layers before the
  training (`circuits`).
- The voice is a function of the codes (`vocoder`), so code2wav can be trained without an adversary.
"""
