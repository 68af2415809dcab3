"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const tools = document.querySelector(".tools");
  if (!tools) return;

  // Sorting: a head becomes a button; rows without a figure stay last in either direction.
  const sortBy = (table, head) => {
    const column = [...head.parentNode.children].indexOf(head);
    const now = head.getAttribute("aria-sort");
    const turned = now === "ascending" ? "descending" : "ascending";
    const direction = now === "none" ? head.dataset.first : turned;
    const sign = direction === "ascending" ? 1 : -1;
    const byText = head.dataset.sort === "text";
    const keyed = [...table.tBodies[0].rows].map((row) => ({ row, key: row.cells[column].dataset.value }));
    keyed.sort((a, b) => {
      // Measured costs of different blocks may not be compared: rows of one block stay together.
      const [one, other] = [a.row.dataset.block, b.row.dataset.block];
      if (head.dataset.measured !== undefined && one !== other) return one < other ? -1 : 1;
      if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "");
      return sign * (byText ? a.key.localeCompare(b.key, "en") : a.key - b.key);
    });
    table.tBodies[0].append(...keyed.map((item) => item.row));
    for (const other of all("th[aria-sort]", table.tHead)) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
  };
  for (const table of all("table.scores")) {
    for (const head of all("th[data-sort]", table.tHead)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sortBy(table, head));
    }
  }

  // Filters.
  const filter = () => {
    const wanted = new FormData(tools);
    const attentions = new Set(wanted.getAll("attention"));
    const implementation = wanted.get("implementation");
    const controls = wanted.has("controls");
    let shown = 0;
    const rows = all("tr[data-attention]");
    for (const row of rows) {
      const { attention, implementation: made, control } = row.dataset;
      row.hidden = !(attentions.has(attention) && (!implementation || made.split(" ").includes(implementation)) && (controls || control === undefined));
    }
    const task = wanted.get("task");
    for (const part of all("[data-task]")) part.hidden = Boolean(task) && part.dataset.task !== task;
    const ofTables = all("table.scores tbody tr");
    shown = ofTables.filter((row) => !row.hidden && !row.closest("section").hidden).length;
    tools.querySelector("output").textContent = `${shown} of ${ofTables.length} rows`;
  };
  tools.addEventListener("change", filter);
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.addEventListener("reset", () => setTimeout(filter));
  tools.hidden = false;
  filter();

  // What stands behind a row opens beside the table instead of beneath it.
  const dialog = document.querySelector("dialog");
  const body = dialog.querySelector(".body");
  const open = (record) => {
    body.replaceChildren(...[...record.childNodes].map((node) => node.cloneNode(true)));
    body.scrollTop = 0;
    history.replaceState(null, "", `#${record.id}`);
    if (!dialog.open) dialog.showModal();
  };
  const behind = (hash) => {
    const record = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    return record && record.classList.contains("record") ? record : null;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) {
      const record = behind(link.hash);
      if (record) {
        event.preventDefault();
        open(record);
      } else if (dialog.open) dialog.close();
      return;
    }
    const row = event.target.closest("table.scores tbody tr");
    if (row && !getSelection().toString()) open(behind(row.querySelector("a").hash));
    if (event.target === dialog || event.target.closest(".close")) dialog.close();
  });
  dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  const asked = behind(location.hash);
  if (asked) open(asked);

  // One figure of a group at a time, chosen by its axis.
  for (const group of all(".plot-group")) {
    const figures = all("figure", group);
    const choice = document.createElement("div");
    choice.className = "choice";
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Horizontal axis");
    const show = (at) => {
      figures.forEach((figure, number) => figure.classList.toggle("away", number !== at));
      [...choice.children].forEach((button, number) => button.setAttribute("aria-pressed", String(number === at)));
    };
    figures.forEach((figure, number) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = figure.dataset.axis;
      button.addEventListener("click", () => show(number));
      choice.append(button);
      figure.querySelector("h4").classList.add("told");
    });
    group.querySelector("h2, h3").after(choice);
    show(0);
  }
})();
