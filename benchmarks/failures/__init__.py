"""How soon a stage that is frozen, hangs or dies is noticed, and how soon all is well again."""
