"""Makes questions of a corpus by rules: facts that pages state in forms that repeat, and a question for each.

`entries` cuts a page into what its title, headings and terms name. `language` holds the forms and words of a language,
which are data files. `facts` finds what an entry says, `questions` asks for it, `checks` tells what makes a question
worthless. Nothing here searches or calls a model.
"""
