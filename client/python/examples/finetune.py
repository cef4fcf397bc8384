"""Fine-tunes a model on questions and answers of a data set: python finetune.py MODEL DATASET OUT"""
import sys
import datasets
import eps

model, name, out = sys.argv[1:]
rows = datasets.load_dataset(name, split="train")
rows = rows.map(lambda row: {"prompt": row["question"] + "\n", "completion": row["answer"]}, remove_columns=rows.column_names)
run = eps.train(rows, model=model, epochs=1, lr=1e-4, device_mem="1GiB", out=out, on_step=lambda s: print(s.step, s.loss))
print("held out", run.eval_loss)
print(eps.generate(run.path, rows[0]["prompt"], temperature=0, n_tokens=100)[0].text)
