// Links to alerts have their names, with capitals.
if (location.hash !== location.hash.toLowerCase()) location.replace(location.hash.toLowerCase());

// Names in tables break after the signs that divide them, so that columns can be narrow.
for (const code of document.querySelectorAll("td code")) {
  const parts = code.textContent.split(/(?<=[-_./:=,])(?=\w)|(?<=[a-z])(?=[A-Z])/);
  code.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
}
