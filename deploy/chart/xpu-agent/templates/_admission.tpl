{{/*
Keeps what one account writes to the node that its token was issued on. Takes root, name, account and metadata, and in
receipts the keys of the annotations that it may write to pods, in extended the names of the extended resources that it may
write to its Node's status. files/node-keys.yaml has the domains of the vendors in tree, nodeKeys those of others.
*/}}
{{- define "xpu-agent.keptToItsNode" -}}
{{- $keys := .root.Files.Get "files/node-keys.yaml" | fromYaml }}
{{- $domains := concat $keys.domains .root.Values.nodeKeys | uniq | sortAlpha }}
{{- $keyNames := printf "of %s, and of domains that nodeKeys names" (join ", " $domains) }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: ["*"], resources: [nodes, nodes/status], operations: [CREATE, UPDATE, DELETE]}
      - {apiGroups: [nfd.k8s-sigs.io], apiVersions: ["*"], resources: [nodefeatures], operations: [CREATE, UPDATE, DELETE]}
      - {apiGroups: [scheduling.koordinator.sh], apiVersions: ["*"], resources: [devices], operations: [CREATE, UPDATE, DELETE]}
      {{- if .receipts }}
      - {apiGroups: [""], apiVersions: ["*"], resources: [pods], operations: [CREATE, UPDATE, DELETE]}
      {{- end }}
  matchConditions:
    - name: by-the-agent
      expression: >-
        request.userInfo.username == "system:serviceaccount:{{ .root.Release.Namespace }}:{{ .account }}"
  variables:
    # Since Kubernetes 1.30 a pod's token says on which node the pod is.
    - name: node
      expression: >-
        "authentication.kubernetes.io/node-name" in request.userInfo.extra
        ? request.userInfo.extra["authentication.kubernetes.io/node-name"][0] : ""
    - name: it
      expression: 'request.operation == "DELETE" ? oldObject : object'
    {{- if .receipts }}
    # A pod is the node's to which it is bound, and no update binds it to another.
    - name: about
      expression: >-
        request.resource.resource == "pods" ? variables.it.spec.?nodeName.orValue("")
        : variables.it.metadata.?name.orValue("")
    {{- else }}
    - name: about
      expression: variables.it.metadata.?name.orValue("")
    {{- end }}
    # By its name, which no update changes, an object is one node's; its label is what the update brings.
    - name: own
      expression: >-
        (request.resource.resource == "nodefeatures" ? "xpu-agent-features-for-" : "") + variables.node
    - name: toldOf
      expression: variables.it.metadata.?labels["nfd.node.kubernetes.io/node-name"].orValue("")
    - name: before
      expression: 'request.operation == "UPDATE" ? oldObject.metadata.?labels.orValue({}) : {}'
    - name: after
      expression: variables.it.metadata.?labels.orValue({})
    - name: noted
      expression: 'request.operation == "UPDATE" ? oldObject.metadata.?annotations.orValue({}) : {}'
    - name: notes
      expression: variables.it.metadata.?annotations.orValue({})
    # A Node's status has a path of its own, by which its metadata can be written, too.
    - name: isStatus
      expression: 'request.?subResource.orValue("") == "status"'
    - name: state
      expression: 'variables.isStatus ? dyn(object).?status.orValue({}) : {}'
    - name: was
      expression: 'variables.isStatus ? dyn(oldObject).?status.orValue({}) : {}'
    - name: counts
      expression: '["capacity", "allocatable"]'
    # The keys of the vendors and of nodeKeys: a stolen token attracts no pods by any other key.
    - name: agentKeys
      expression: '"^({{ join "|" $domains | replace "." "[.]" }})/"'
    # Locks of schedulers, which a dead scheduler leaves: the agent may remove them and not set them.
    - name: locks
      expression: '{{ toJson $keys.locks }}'
  validations:
    - expression: variables.node != "" && variables.about == variables.own
      messageExpression: >-
        "xpu-agent on node '" + variables.node + "' may write to that node alone, not to '" + variables.about + "'"
      reason: Forbidden
    - expression: >-
        request.resource.resource != "nodefeatures" || request.operation == "DELETE" || variables.toldOf == variables.node
      messageExpression: >-
        "xpu-agent on node '" + variables.node + "' may write to that node alone, not labels of '" + variables.toldOf + "'"
      reason: Forbidden
    # An owner that is not there has the garbage collector delete the Node, and a finalizer keeps one for ever.
    - expression: >-
        request.resource.resource != "nodes" || (request.operation == "UPDATE" && object.spec == oldObject.spec
        && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
        && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]))
      message: xpu-agent may change the labels and annotations of its node, and nothing else of it
      reason: Forbidden
    - expression: >-
        request.resource.resource != "nodes" || variables.isStatus || (
        variables.after.all(k, k.matches(variables.agentKeys) || (k in variables.before && variables.before[k] == variables.after[k]))
        && variables.before.all(k, k.matches(variables.agentKeys) || k in variables.after))
      message: xpu-agent may change labels of its node that are {{ $keyNames }}; no others
      reason: Forbidden
    - expression: >-
        request.resource.resource != "nodes" || variables.isStatus || (
        variables.notes.all(k, k.matches(variables.agentKeys) || (k in variables.noted && variables.noted[k] == variables.notes[k]))
        && variables.noted.all(k, k.matches(variables.agentKeys) || k in variables.notes || k in variables.locks))
      message: xpu-agent may change annotations of its node that are {{ $keyNames }}; no others
      reason: Forbidden
    # What node-feature-discovery makes labels of the Node out of.
    - expression: >-
        request.resource.resource != "nodefeatures" || request.operation == "DELETE"
        || dyn(object).?spec.?labels.orValue({}).all(k, k.matches(variables.agentKeys))
      message: xpu-agent may tell of its node labels that are {{ $keyNames }}; no others
      reason: Forbidden
    {{- $extended := .extended | default list }}
    - expression: >-
        !variables.isStatus || (variables.after == variables.before
        && variables.notes.all(k, k == "xpu-agent.io/extended-resources" || (k in variables.noted && variables.noted[k] == variables.notes[k]))
        && variables.noted.all(k, k == "xpu-agent.io/extended-resources" || k in variables.notes))
      message: xpu-agent may note with the status of its node which extended resources are its own, and nothing else
      reason: Forbidden
    - expression: >-
        !variables.isStatus || (
        variables.state.all(k, k in variables.counts || (k in variables.was && variables.was[k] == variables.state[k]))
        && variables.was.all(k, k in variables.counts || k in variables.state))
      message: xpu-agent may change capacity and allocatable of its node's status, and nothing else of it
      reason: Forbidden
    - expression: >-
        !variables.isStatus || variables.counts.all(c,
        variables.state[?c].orValue({}).all(k, k in {{ toJson $extended }}
        || variables.was[?c].orValue({})[?k].orValue("") == variables.state[c][k])
        && variables.was[?c].orValue({}).all(k, k in {{ toJson $extended }} || k in variables.state[?c].orValue({})))
      message: xpu-agent may count for its node what nodeStatus.resources names, {{ join ", " $extended | default "which is nothing" }}
      reason: Forbidden
    {{- with .receipts }}
    - expression: >-
        request.resource.resource != "pods" || (request.operation == "UPDATE"
        && object.spec == oldObject.spec && variables.after == variables.before
        && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
        && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]))
      message: xpu-agent may change annotations of pods, and nothing else of them
      reason: Forbidden
    - expression: >-
        request.resource.resource != "pods" || (
        variables.notes.all(k, k in {{ toJson . }} || (k in variables.noted && variables.noted[k] == variables.notes[k]))
        && variables.noted.all(k, k in {{ toJson . }} || k in variables.notes))
      message: xpu-agent may change of the annotations of pods those that pods.receipts names, {{ join ", " . }}
      reason: Forbidden
    {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}
{{/* The accounts that may write schedulers' annotations to pods, as JSON: users and groups by their names at the API server. */}}
{{- define "xpu-agent.schedulers" -}}
{{- $users := list -}}
{{- $groups := list -}}
{{- range $_, $its := .Values.schedulerAnnotations.writers -}}
{{- if $its -}}
{{- range $its.serviceAccounts -}}
{{- $users = append $users (printf "system:serviceaccount:%s" (replace "/" ":" .)) -}}
{{- end -}}
{{- $users = concat $users (default list $its.users) -}}
{{- $groups = concat $groups (default list $its.groups) -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "users" (uniq $users | sortAlpha) "groups" (uniq $groups | sortAlpha)) -}}
{{- end -}}

{{/* CEL: whether the annotation k matches a name with any text in its middle. Takes lists of beginning and end. */}}
{{- define "xpu-agent.isMade" -}}
{{- $tests := list -}}
{{- range . -}}
{{- $tests = append $tests (printf "(k.startsWith(%s) && k.endsWith(%s))" (first . | toJson) (last . | toJson)) -}}
{{- end -}}
{{- join " || " $tests -}}
{{- end -}}
