"""Grading a class: submissions in, one page, one table and a page per learner out.

    collect   finds what was handed in, as each platform writes it;  roster  who the class is
    answers   takes the learner's code out of a notebook, by exercise
    box       the closed process in which that code runs: limits, own files, no network
    values, channel   the narrow line between the check and that process
    learner   what runs inside the box;  checker   what judges, outside of it
    server    a process with the frameworks loaded, from which checkers are forked
    points, roster, marks   the instructor's tables, and what gradebooks take;  pages, command
    nbgrader, platforms   the exercises and marks where others grade;  release, submit

The check never runs in the learner's process. It calls the learner's function over a line that
carries data only, so nothing that the learner's code does can write a result: all it can say is
what its own function returns.
"""
