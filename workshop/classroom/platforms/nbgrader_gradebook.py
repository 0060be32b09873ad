"""`class-marks.csv` into nbgrader's gradebook, through nbgrader's own API.

    python nbgrader_gradebook.py class-marks.csv gradebook.db     # with the Python of nbgrader

It imports nothing of the course. The assignment gets one cell, whose points are the total; a second
call brings them up to date.
"""

from __future__ import annotations

import csv
import sys
from datetime import datetime

ASSIGNMENT = NOTEBOOK = CELL = "rn50-workbook"


def main(table: str, database: str) -> int:
    from nbgrader.api import Gradebook  # type: ignore[import-not-found]

    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    with Gradebook(f"sqlite:///{database}") as book:
        book.update_or_create_assignment(ASSIGNMENT)
        book.update_or_create_notebook(NOTEBOOK, ASSIGNMENT)
        most = max((float(row["of"]) for row in rows), default=0.0)
        book.update_or_create_grade_cell(
            CELL, NOTEBOOK, ASSIGNMENT, max_score=most, cell_type="code"
        )
        for row in rows:
            who = row["id"] or row["learner"]
            first, _, last = row["learner"].rpartition(" ")
            about = {"first_name": first, "last_name": last, "email": row["e-mail"] or None}
            book.update_or_create_student(who, **about)
            when = datetime.fromisoformat(row["handed in"][:19]) if row["handed in"] else None
            book.update_or_create_submission(ASSIGNMENT, who, timestamp=when)
            grade = book.find_grade(CELL, NOTEBOOK, ASSIGNMENT, who)
            grade.manual_score, grade.needs_manual_grade = float(row["points"]), False
        book.db.commit()
    print(f"{len(rows)} learners are in {database}, under {ASSIGNMENT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
