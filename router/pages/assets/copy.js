// Buttons of the class `copy` copy the text of the <code> before them, here and in reports.

const SAID_MS = 2000;

async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // A page of another machine without TLS has no clipboard, and some browsers refuse it: as by hand.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
}

document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".copy")) return;
  await copy(target.previousElementSibling);
  const said = document.createElement("output");
  said.className = "said";
  said.textContent = `Copied: ${target.previousElementSibling.textContent}`;
  document.body.append(said);
  setTimeout(() => said.remove(), SAID_MS);
});
