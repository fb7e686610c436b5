{{/* Name and version of the chart, as a valid label. */}}
{{- define "windows-node-pools.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels that select the operator's pods. They must not change, because the selector of a Deployment cannot. */}}
{{- define "windows-node-pools.selectorLabels" -}}
app.kubernetes.io/name: windows-node-pools
{{- end }}

{{/* Labels that identify the release. Objects with labels of their own get these in addition. */}}
{{- define "windows-node-pools.releaseLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ include "windows-node-pools.chart" . | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of an object; a list of the root and the component. */}}
{{- define "windows-node-pools.labels" -}}
app.kubernetes.io/component: {{ index . 1 }}
{{ include "windows-node-pools.selectorLabels" (index . 0) }}
app.kubernetes.io/part-of: windows-node-pools
{{ include "windows-node-pools.releaseLabels" (index . 0) }}
{{- end }}

{{/* Yields `true` if an option is on; a list of the root and the option. An option that is not set is on if the platform is OpenShift. */}}
{{- define "windows-node-pools.onOpenShift" -}}
{{- $value := index . 1 -}}
{{- if or $value (and (kindIs "invalid" $value) (eq (index . 0).Values.platform "openshift")) }}true{{ end -}}
{{- end }}

{{/* The image, by digest or by tag. */}}
{{- define "windows-node-pools.image" -}}
{{- $image := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $image = printf "%s/%s" . $image }}{{ end -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" $image .Values.image.digest }}{{ else }}{{ printf "%s:%s" $image (.Values.image.tag | default .Chart.AppVersion) }}{{ end -}}
{{- end }}

{{/* The files that match a pattern, with the namespace, the user and the labels of this release; a list of the root and the pattern.
The operator compares the policies with the same files, and fills them in the same way. */}}
{{- define "windows-node-pools.files" -}}
{{- $root := index . 0 -}}
{{- $user := printf "%s:%s\"" $root.Release.Namespace $root.Values.serviceAccount.name -}}
{{- $labels := include "windows-node-pools.releaseLabels" $root | indent 4 -}}
{{- range $path, $_ := $root.Files.Glob (index . 1) }}
---
{{ $root.Files.Get $path
  | replace "openshift-windows-machine-config-operator:windows-node-pools\"" $user
  | replace "openshift-windows-machine-config-operator" $root.Release.Namespace
  | replace "\n  labels:\n" (printf "\n  labels:\n%s\n" $labels) }}
{{- end }}
{{- end }}

{{/* Fails if the values contradict each other or the cluster. */}}
{{- define "windows-node-pools.validate" -}}
{{- if and (eq .Values.platform "kubernetes") (not .Values.operator.apiServer) }}
{{- fail "operator.apiServer is missing: with platform kubernetes, set it to the URL at which Windows hosts reach the API server, for example https://api.example.com:6443" }}
{{- end }}
{{- /* Without a cluster, as in `helm template`, the lookup is empty, and the platform is unknown. */}}
{{- if and (eq .Values.platform "openshift") (lookup "v1" "Namespace" "" "default") (not (.Capabilities.APIVersions.Has "config.openshift.io/v1")) }}
{{- fail "this cluster is not OpenShift, because it has no config.openshift.io/v1: set platform=kubernetes and operator.apiServer" }}
{{- end }}
{{- if and .Values.operator.payload .Values.payload.image }}
{{- fail "operator.payload and payload.image are both set: the payload is either in a folder of the operator's image or in an image of its own; remove one" }}
{{- end }}
{{- end }}

{{/* The environment variables of the values below `operator`. Each name is derived from that of the value, unless `$names` has another one. */}}
{{- define "windows-node-pools.env" -}}
{{- $names := dict "payload" "PAYLOAD_DIR" "wicd" "WICD_EXE" "logFormat" "LOG_FORMAT" "logLevel" "LOG_LEVEL" "servicesLogFileSize" "SERVICES_LOG_FILE_SIZE" "servicesLogFileAge" "SERVICES_LOG_FILE_AGE" "servicesLogFlushInterval" "SERVICES_LOG_FLUSH_INTERVAL" "httpProxy" "HTTP_PROXY" "httpsProxy" "HTTPS_PROXY" "noProxy" "NO_PROXY" }}
{{- range $key, $value := .Values.operator }}
{{- if kindIs "slice" $value }}{{ $value = join "," $value }}{{ end }}
{{- if or (kindIs "float64" $value) (kindIs "int" $value) }}{{ $value = int64 $value }}{{ end }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
- name: {{ get $names $key | default (printf "WINDOWS_NODE_POOLS_%s" (snakecase $key | upper)) }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pod of the operator, and that of `helm test`, which checks and ends; a list of the root, the name of the container and its command. */}}
{{- define "windows-node-pools.pod" -}}
{{- $name := index . 1 }}
{{- $command := index . 2 }}
{{- with index . 0 }}
{{- $openshift := eq .Values.platform "openshift" }}
{{- $copied := and .Values.payload.image (eq .Values.payload.by "initContainers") }}
serviceAccountName: {{ .Values.serviceAccount.name | quote }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with kindIs "invalid" .Values.priorityClassName | ternary ($openshift | ternary "system-cluster-critical" "") .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with .Values.dnsPolicy | default (.Values.hostNetwork | ternary "ClusterFirstWithHostNet" "") }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $copied }}
initContainers:
  - name: program
    image: {{ include "windows-node-pools.image" . | quote }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    args: [payload, program, --to, /program]
    resources:
      limits:
        memory: 256Mi
      requests:
        cpu: 50m
        memory: 64Mi
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - name: program
        mountPath: /program
  - name: payload
    image: {{ .Values.payload.image | quote }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    command: [/program/windows-node-pools]
    args: [payload, files, --to, /var/lib/windows-node-pools/payload]
    resources:
      limits:
        memory: 256Mi
      requests:
        cpu: 50m
        memory: 64Mi
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - name: program
        mountPath: /program
        readOnly: true
      - name: payload
        mountPath: /var/lib/windows-node-pools
{{- end }}
containers:
  - name: {{ $name }}
    image: {{ include "windows-node-pools.image" . | quote }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    {{- if ne $command "run" }}
    command:
      - kubectl-windows_node_pools
    {{- end }}
    args:
      - {{ $command }}
      {{- range .Values.extraArgs }}
      - {{ . | quote }}
      {{- end }}
    env:
      - name: WATCH_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      - name: POD_NAME
        valueFrom:
          fieldRef:
            fieldPath: metadata.name
      {{- if .Values.payload.image }}
      - name: PAYLOAD_DIR
        value: /var/lib/windows-node-pools/payload
      {{- end }}
      {{- include "windows-node-pools.env" . | trim | nindent 6 }}
      {{- with .Values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- if eq $command "run" }}
    ports:
      - name: probes
        containerPort: 9182
      - name: metrics
        containerPort: 9185
      # Open only while the Secret windows-node-pools-webhook has a token.
      - name: webhook
        containerPort: 9184
    livenessProbe:
      httpGet:
        path: /healthz
        port: probes
    readinessProbe:
      httpGet:
        path: /readyz
        port: probes
    {{- end }}
    {{- with .Values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - name: cache
        mountPath: /var/cache/windows-node-pools
      - name: metrics-tls
        mountPath: /etc/windows-node-pools/metrics-tls
        readOnly: true
      {{- if .Values.payload.image }}
      - name: payload
        mountPath: /var/lib/windows-node-pools
        readOnly: true
      {{- end }}
      {{- with .Values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
terminationGracePeriodSeconds: 60
volumes:
  # Clones of the Git repositories of pools. The operator fetches lost ones again.
  - name: cache
    emptyDir:
      sizeLimit: 2Gi
  # A certificate of another program, such as OpenShift's service-ca or cert-manager. Without it, the operator creates its own.
  - name: metrics-tls
    secret:
      optional: true
      secretName: windows-node-pools-metrics-tls
  {{- if $copied }}
  - name: program
    emptyDir:
      sizeLimit: 256Mi
  - name: payload
    emptyDir:
      sizeLimit: 2Gi
  {{- else if .Values.payload.image }}
  - name: payload
    image:
      reference: {{ .Values.payload.image | quote }}
      {{- with .Values.image.pullPolicy }}
      pullPolicy: {{ . }}
      {{- end }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if not (kindIs "invalid" .Values.nodeSelector) }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else }}
nodeSelector:
  kubernetes.io/os: linux
  {{- if $openshift }}
  node-role.kubernetes.io/control-plane: ""
  {{- end }}
{{- end }}
{{- if not (kindIs "invalid" .Values.tolerations) }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else if $openshift }}
tolerations:
  - key: node-role.kubernetes.io/master
    effect: NoSchedule
    operator: Exists
  - key: node-role.kubernetes.io/control-plane
    effect: NoSchedule
    operator: Exists
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
