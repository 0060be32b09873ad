"""`rn50 workshop try SCRIPT -n 2`: a script that trains in parallel, judged by what it did.

command    starts the script on several ranks, and on one, with a recorder in each process
recorder   runs inside the script's processes and writes down what passes by
report     reads what was written down and says which of the changes are there, with evidence
"""
