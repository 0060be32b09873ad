import nbformat
import papermill

cells = ["!python prepare.py --out data", "print('training on what is in data')"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
nbformat.write(book, "course.ipynb")
done = papermill.execute_notebook("course.ipynb", "done.ipynb", progress_bar=False)
for cell in done.cells:
    print("".join(output.text for output in cell.outputs), end="")
print("papermill: the notebook has passed")
